"""What kafkasse reaches, measured beside baselines in the same run. Start it by `make bench`; see __main__.py."""
