"""Generated messages and stubs of the rdsd.v1 API (see generate.sh) and its errno table."""
