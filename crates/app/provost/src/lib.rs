//! Application library: typed RPCs through the node's managed service
