//! The engine between an app's rings and its datapaths
