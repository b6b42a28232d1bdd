//! Seeded simulator of whole nodes
