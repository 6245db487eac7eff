"""Bridges to other programs, each importing what it needs when it is used."""
