"""Descriptions for clients: the streams of a server, its errors, and documents for tools. No I/O, and no Flask.

streams   a description of each stream for its clients
events    the JSON Schemas of the events, for each format
openapi   the streams as an OpenAPI 3.2 document
asyncapi  the streams as an AsyncAPI 3.0 document
security  how a client sends its credentials
"""
