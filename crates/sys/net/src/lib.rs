//! Sockets, readiness and gather I/O for the data plane
