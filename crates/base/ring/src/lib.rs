//! Single-producer single-consumer rings and wake words over memory given to them
