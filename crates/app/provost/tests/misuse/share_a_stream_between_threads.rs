use provost::shared::{List, String};

#[derive(Clone, Debug, Default, PartialEq)]
#[repr(C)]
struct Note {
    text: String,
    tags: List<String>,
}

provost::__message!(Note, "test.Note", [text, tags]);

fn misuse(mut notes: provost::Streaming<Note>) {
    std::thread::scope(|scope| {
        scope.spawn(|| provost::blocking::block_on(notes.message()));
        scope.spawn(|| provost::blocking::block_on(notes.message()));
    });
}

fn main() {}
