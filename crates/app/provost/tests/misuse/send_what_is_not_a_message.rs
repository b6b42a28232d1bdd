use provost::Received;
use provost::shared::{List, String};

#[derive(Clone, Debug, Default, PartialEq)]
#[repr(C)]
struct Note {
    text: String,
    tags: List<String>,
}

provost::__message!(Note, "test.Note", [text, tags]);

// Private memory means nothing to another process.
struct Private {
    text: std::string::String,
}

async fn misuse(channel: &provost::Channel) {
    let request = provost::Request::new(Private { text: "a".to_owned() });
    let _ = provost::codegen::unary::<Private, Note>(channel, 0, request).await;
}

fn main() {}
