//! The CUDA part of the report: driver, devices, and the libraries found.

use std::{
    ffi::{c_char, CStr},
    path::PathBuf,
};

use super::{
    driver::{attribute, Driver},
    gemm::cublaslt::NOT_FOUND,
    library,
    nvrtc::Nvrtc,
};
use crate::{context::Capability, error::Result, info::Json};

/// The driver's device with this ordinal and what it can do; nothing is retained.
pub(super) fn device(driver: &Driver, ordinal: i32) -> Result<(i32, Capability)> {
    let mut device = 0;
    // SAFETY: an out-pointer.
    driver.check("cuDeviceGet", unsafe { (driver.device_get)(&mut device, ordinal) })?;
    let get = |what: i32| -> Result<i32> {
        let mut v = 0;
        // SAFETY: an out-pointer and a device of this driver.
        driver.check("cuDeviceGetAttribute", unsafe { (driver.device_get_attribute)(&mut v, what, device) })?;
        Ok(v)
    };
    let arch = get(attribute::MAJOR)? * 10 + get(attribute::MINOR)?;
    let mut name = [0 as c_char; 128];
    let mut total_memory = 0usize;
    // SAFETY: out-pointers; the buffer has the length passed.
    unsafe {
        driver.check("cuDeviceGetName", (driver.device_get_name)(name.as_mut_ptr(), name.len() as i32, device))?;
        driver.check("cuDeviceTotalMem", (driver.device_total_mem)(&mut total_memory, device))?;
    }
    name[127] = 0;
    // SAFETY: terminated just above.
    let name = unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned();
    let capability = Capability {
        arch,
        multiprocessors: get(attribute::MULTIPROCESSORS)?,
        fp8_cast_hardware: arch >= 89,
        fp8_gemm_hardware: arch >= 89,
        fp8_gemm_k_major_only: arch < 100,
        total_memory: total_memory as u64,
        name,
    };
    Ok((device, capability))
}

/// Number of devices the driver reports.
pub(super) fn device_count(driver: &Driver) -> Result<i32> {
    let mut count = 0;
    // SAFETY: an out-pointer.
    driver.check("cuDeviceGetCount", unsafe { (driver.device_get_count)(&mut count) })?;
    Ok(count)
}

fn driver() -> Result<Json> {
    let driver = Driver::get()?;
    let mut version = 0;
    // SAFETY: an out-pointer.
    driver.check("cuDriverGetVersion", unsafe { (driver.driver_get_version)(&mut version) })?;
    let devices = (0..device_count(driver)?).map(|i| Json::or_error(device(driver, i).map(|(_, c)| crate::info::capability(&c)))).collect();
    Ok(Json::object([
        ("cuda_version", Json::text(format!("{}.{}", version / 1000, version % 1000 / 10))),
        ("devices", Json::List(devices)),
    ]))
}

fn nvrtc(dirs: &[PathBuf]) -> Result<Json> {
    let nvrtc = Nvrtc::get(dirs)?;
    let (major, minor) = nvrtc.version();
    Ok(Json::object([("path", Json::text(nvrtc.name())), ("version", Json::text(format!("{major}.{minor}")))]))
}

fn cublas_lt(dirs: &[PathBuf]) -> Json {
    let Some(found) = library::find(&library::CUBLAS_LT, dirs) else {
        return Json::object([("error", Json::text(NOT_FOUND))]);
    };
    let version = found.symbol(c"cublasLtGetVersion").map(|p| {
        // SAFETY: cuBLASLt's ABI: no arguments, a number.
        let get = unsafe { std::mem::transmute::<*mut std::ffi::c_void, unsafe extern "C" fn() -> usize>(p) };
        // SAFETY: as above.
        unsafe { get() }
    });
    Json::object([
        ("path", Json::text(found.name())),
        ("version", version.map_or(Json::Null, |v| Json::text(format!("{}.{}.{}", v / 10_000, v / 100 % 100, v % 100)))),
    ])
}

/// NVRTC and cuBLASLt as a context with these folders finds them.
pub(super) fn libraries(dirs: &[PathBuf]) -> [(String, Json); 2] {
    [("nvrtc".to_owned(), Json::or_error(nvrtc(dirs))), ("cublaslt".to_owned(), cublas_lt(dirs))]
}

/// Driver, devices and libraries of this process.
pub(crate) fn describe() -> Json {
    let mut fields = vec![("driver".to_owned(), Json::or_error(driver()))];
    fields.extend(libraries(&[]));
    fields.push(("paths_tried".to_owned(), Json::List(library::tried().into_iter().map(Json::Text).collect())));
    Json::Object(fields)
}
