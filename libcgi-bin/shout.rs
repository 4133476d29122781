// A library in Rust: answers with the body in capital letters. curl -d hello http://127.0.0.1:4000/libcgi-bin/shout.so
//
// rustc makes a shared object of it with --crate-type cdylib. The server's functions are declared as they are in
// ewe_libcgi.h. `extern "C" fn` aborts the call when Rust panics, and the server then answers 500.
use std::ffi::CStr;
use std::os::raw::{c_char, c_int, c_long, c_void};

extern "C" {
    fn lputs(text: *const c_char) -> c_int;
    fn lwrite(data: *const c_void, length: usize) -> c_long;
}

// By this symbol the server knows that several threads may be inside at once: nothing here is shared.
#[no_mangle]
#[allow(non_upper_case_globals)]
pub static ewe_libcgi_reentrant: c_int = 1;

#[no_mangle]
pub extern "C" fn processfunc(input: *const c_char) {
    let text = if input.is_null() {
        String::from("Send me a text.")
    } else {
        // The server puts a NUL behind the body.
        unsafe { CStr::from_ptr(input) }.to_string_lossy().into_owned()
    };
    let answer = text.to_uppercase() + "\n";
    unsafe {
        lputs(b"Content-Type: text/plain; charset=utf-8\n\n\0".as_ptr().cast());
        lwrite(answer.as_ptr().cast(), answer.len());
    }
}
