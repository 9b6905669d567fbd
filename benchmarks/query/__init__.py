"""Queries over the live log against Parquet files of the same rows."""
