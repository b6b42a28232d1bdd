include!(concat!(env!("OUT_DIR"), "/_.rs"));
pub mod golden {
    pub mod everything {
        include!(concat!(env!("OUT_DIR"), "/golden.everything.rs"));
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
pub mod google {
    pub mod protobuf {
        include!(concat!(env!("OUT_DIR"), "/google.protobuf.rs"));
    }
}
