"""Files under ``config/`` and broker settings."""
