"""The operators of the chunk engine that are registered with torch."""
