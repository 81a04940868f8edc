"""Owns the parts of server addresses: several hosts, certificates, password files, HTTP proxies."""
