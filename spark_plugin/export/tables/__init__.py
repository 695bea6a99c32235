"""Delta, Iceberg and Parquet tables."""
