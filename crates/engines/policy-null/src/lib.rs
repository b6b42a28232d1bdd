//! The policy that does nothing: how little an engine needs
