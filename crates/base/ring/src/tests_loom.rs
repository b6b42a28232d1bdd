//! Every interleaving and ordering that loom knows, of a tiny ring and its wake word.
