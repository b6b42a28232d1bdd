//! Both ends on one node: one copy between heaps, no socket
