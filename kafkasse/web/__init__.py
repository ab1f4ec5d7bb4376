"""HTTP: the only package that uses Flask."""
