//! The smallest Provost service
