//! The native protocol over TCP, plain or mutual TLS
