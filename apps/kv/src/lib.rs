//! A key-value service and its client, the project's demonstration
