//! Compiles .proto files into Provost clients, servers and message types
