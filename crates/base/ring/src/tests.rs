//! Tests of the rings as one model, and of peers that lie.
