//! The native stream protocol, without I/O
