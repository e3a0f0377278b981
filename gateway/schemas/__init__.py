"""The OpenAPI components of the two seed documents, under their own names. Shapes only, no behaviour."""
