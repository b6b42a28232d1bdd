include!(concat!(env!("OUT_DIR"), "/_.rs"));
pub mod golden {
    pub mod everything {
        include!(concat!(env!("OUT_DIR"), "/golden.everything.rs"));
    }
    pub mod known {
        include!(concat!(env!("OUT_DIR"), "/golden.known.rs"));
    }
    pub mod names {
        include!(concat!(env!("OUT_DIR"), "/golden.names.rs"));
    }
    pub mod nesting {
        include!(concat!(env!("OUT_DIR"), "/golden.nesting.rs"));
    }
    pub mod options {
        include!(concat!(env!("OUT_DIR"), "/golden.options.rs"));
    }
    pub mod r#type {
        include!(concat!(env!("OUT_DIR"), "/golden.type.rs"));
    }
}
