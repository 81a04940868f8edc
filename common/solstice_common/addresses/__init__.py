"""Owns what addresses of servers name: several hosts, certificates, files of passwords."""
