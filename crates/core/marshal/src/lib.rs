//! Op tables compiled from a schema: gather, check, protobuf, field access
