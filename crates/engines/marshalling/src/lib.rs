//! The engine between typed messages and a transport's encoding
