//! Trains.
