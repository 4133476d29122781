CREATE TABLE basket (session TEXT, goods TEXT, count INTEGER, PRIMARY KEY (session, goods));
