"""Puts these modules before those of the flyteidl wheel, which supplies all others."""

__path__ = __import__("pkgutil").extend_path(__path__, __name__)
