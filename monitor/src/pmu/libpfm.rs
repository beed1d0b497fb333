//! libpfm4, which turns event names into what `perf_event_open` takes.
//!
//! It is loaded at run time, so that the monitor starts on machines without it. Source: perfmon/pfmlib.h and
//! perfmon/pfmlib_perf_event.h of libpfm4 4.13.

use std::ffi::{CStr, CString, c_char, c_int};

use libloading::Library;
use perf_event_open_sys::bindings::perf_event_attr;
use slackwater_messages::AbsenceCause;

use crate::reason::Reason;

/// The library's file; the search follows the program's rpath, LD_LIBRARY_PATH and the system's folders.
pub const FILE: &str = "libpfm.so.4";
const SUCCESS: c_int = 0;
const OS_PERF_EVENT: c_int = 1;
/// User, kernel and hypervisor level; `group::Options` narrows them afterwards.
const ALL_LEVELS: c_int = 1 | 8 | 16;
const TYPE_CORE: c_int = 1;
/// More than the kinds of PMU that any libpfm4 knows.
const KINDS: c_int = 2048;

#[repr(C)]
struct EncodeArgument {
    attr: *mut perf_event_attr,
    full_name: *mut *mut c_char,
    size: usize,
    index: c_int,
    cpu: c_int,
    flags: c_int,
    padding: c_int,
}

#[repr(C)]
struct PmuInfo {
    name: *const c_char,
    description: *const c_char,
    size: usize,
    pmu: c_int,
    kind: c_int,
    events: c_int,
    first_event: c_int,
    longest_encoding: c_int,
    counters: c_int,
    fixed_counters: c_int,
    /// Bit 0: the PMU is present.
    bits: u32,
}

type Encode = unsafe extern "C" fn(*const c_char, c_int, c_int, *mut EncodeArgument) -> c_int;
type GetPmuInfo = unsafe extern "C" fn(c_int, *mut PmuInfo) -> c_int;

/// How the kernel is asked for an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Encoding {
    /// Kind of event source.
    pub kind: u32,
    /// The event of that source.
    pub config: u64,
    /// The event's first extension.
    pub config1: u64,
    /// The event's second extension.
    pub config2: u64,
}

/// The loaded library.
pub struct Libpfm {
    library: Library,
    encode: Encode,
}

impl Libpfm {
    /// Loads and initialises libpfm4.
    ///
    /// # Errors
    /// Why that fails, with the package that brings the library.
    pub fn load() -> Result<Libpfm, Reason> {
        Libpfm::load_file(FILE)
    }

    fn load_file(file: &str) -> Result<Libpfm, Reason> {
        let fault = |error: libloading::Error| {
            let text = format!("libpfm4 cannot be loaded ({error}); Debian's package is libpfm4");
            Reason::new(AbsenceCause::NoLibpfm, text)
        };
        // SAFETY: libpfm4 is a plain C library whose constructors do nothing.
        let library = unsafe { Library::new(file) }.map_err(fault)?;
        // SAFETY: the types are those of the headers named above.
        let (initialise, encode) = unsafe {
            let initialise = library.get::<unsafe extern "C" fn() -> c_int>(b"pfm_initialize\0").map_err(fault)?;
            (*initialise, *library.get::<Encode>(b"pfm_get_os_event_encoding\0").map_err(fault)?)
        };
        let libpfm = Libpfm { library, encode };
        // SAFETY: takes nothing, and may be called again.
        match unsafe { initialise() } {
            SUCCESS => Ok(libpfm),
            code => Err(format!("libpfm4 does not start: {}", libpfm.describe(code)).into()),
        }
    }

    /// The encoding of an event, such as `cycles`, `skl::MEM_LOAD_RETIRED:L3_MISS` or `r01c2`.
    ///
    /// # Errors
    /// Why there is none.
    pub fn encode(&self, name: &str) -> Result<Encoding, Reason> {
        let text = CString::new(name).map_err(|_| format!("{name:?} is no name of an event"))?;
        let mut attr = perf_event_attr { size: size_of::<perf_event_attr>() as u32, ..perf_event_attr::default() };
        let mut argument = EncodeArgument {
            attr: &raw mut attr,
            full_name: std::ptr::null_mut(),
            size: size_of::<EncodeArgument>(),
            index: 0,
            cpu: 0,
            flags: 0,
            padding: 0,
        };
        // SAFETY: both pointers live until the call ends; the struct is the header's and carries its size.
        match unsafe { (self.encode)(text.as_ptr(), ALL_LEVELS, OS_PERF_EVENT, &raw mut argument) } {
            SUCCESS => {
                Ok(Encoding { kind: attr.type_, config: attr.config, config1: attr.config1, config2: attr.config2 })
            }
            code => Err(format!("libpfm4 knows no event {name:?} here: {}", self.describe(code)).into()),
        }
    }

    /// libpfm4's names of the CPU models that are present.
    pub fn models(&self) -> Vec<String> {
        // SAFETY: the type is the header's.
        let Ok(get) = (unsafe { self.library.get::<GetPmuInfo>(b"pfm_get_pmu_info\0") }) else { return Vec::new() };
        let named = |kind: c_int| {
            // SAFETY: numbers and null pointers are valid when they are zero.
            let mut info: PmuInfo = unsafe { std::mem::zeroed() };
            info.size = size_of::<PmuInfo>();
            // SAFETY: the struct lives until the call ends and carries its size.
            let is_present =
                unsafe { get(kind, &raw mut info) } == SUCCESS && info.bits & 1 == 1 && info.kind == TYPE_CORE;
            // SAFETY: the name is a constant of the library, which is loaded.
            is_present.then(|| unsafe { CStr::from_ptr(info.name) }.to_string_lossy().into_owned())
        };
        (0..KINDS).filter_map(named).collect()
    }

    /// The library's version, as "4.0".
    pub fn version(&self) -> String {
        // SAFETY: the type is the header's; it takes nothing.
        let number = unsafe {
            self.library.get::<unsafe extern "C" fn() -> c_int>(b"pfm_get_version\0").map_or(0, |version| version())
        };
        format!("{}.{}", number >> 16, number & 0xffff)
    }

    fn describe(&self, code: c_int) -> String {
        // SAFETY: the type is the header's; the text is a constant of the library, which is loaded.
        unsafe {
            self.library
                .get::<unsafe extern "C" fn(c_int) -> *const c_char>(b"pfm_strerror\0")
                .map(|describe| CStr::from_ptr(describe(code)).to_string_lossy().into_owned())
        }
        .unwrap_or_else(|_| format!("error {code}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_not_there_is_named_with_its_package() {
        let reason = Libpfm::load_file("libslackwater-none.so.4").err().expect("no such library");
        assert!(reason.starts_with("libpfm4 cannot be loaded (libslackwater-none.so.4"), "{reason}");
        assert!(reason.ends_with("package is libpfm4"), "{reason}");
    }

    #[test]
    fn names_become_encodings_and_unknown_ones_a_reason() {
        let libpfm = match Libpfm::load() {
            Ok(libpfm) => libpfm,
            Err(reason) => {
                println!("skipped: {reason}");
                return;
            }
        };
        assert!(libpfm.version().starts_with("4."), "{}", libpfm.version());
        let encoding = |kind, config| Ok(Encoding { kind, config, config1: 0, config2: 0 });
        // The kernel's generic hardware, software, cache and raw events.
        assert_eq!(libpfm.encode("cycles"), encoding(0, 0));
        assert_eq!(libpfm.encode("instructions"), encoding(0, 1));
        assert_eq!(libpfm.encode("task-clock"), encoding(1, 1));
        assert_eq!(libpfm.encode("LLC-LOAD-MISSES"), encoding(3, 0x10002));
        assert_eq!(libpfm.encode("r3ff"), encoding(4, 0x3ff));
        assert!(libpfm.encode("").is_err() && libpfm.encode("a\0b").is_err());
    }
}
