//! One suite that every transport engine passes
