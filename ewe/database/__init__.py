"""The database demon `ewe-dbd`: permanent connections that run SQL statements for gateways."""
