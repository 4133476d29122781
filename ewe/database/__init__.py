"""The database daemon `ewe-dbd`: permanent connections that run SQL statements for gateways."""
