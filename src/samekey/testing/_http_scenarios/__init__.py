"""The scenarios of the HTTP suite, by what they are about."""
