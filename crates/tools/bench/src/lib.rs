//! Benchmarks of Provost beside raw TCP, tonic and Envoy
