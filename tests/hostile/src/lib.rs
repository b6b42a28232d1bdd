//! An application that attacks the service it is attached to
