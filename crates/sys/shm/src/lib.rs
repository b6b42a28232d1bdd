//! Sealed memfds, mappings, descriptor passing and doorbells
