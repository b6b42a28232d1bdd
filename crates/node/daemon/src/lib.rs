//! The managed RPC service of a node
