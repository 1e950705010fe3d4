// SPDX-License-Identifier: Apache-2.0
//! `devicefusion-bench model` on the CUDA emulator, which needs NVRTC.
#![allow(clippy::unwrap_used, clippy::panic)]

use serde_json::Value;

#[test]
fn a_scan_reads_its_columns_and_little_else() {
    let Some(mut model) = device::testing::emulated(env!("CARGO_BIN_EXE_devicefusion-bench")).unwrap() else {
        eprintln!("skipped: no NVRTC; scripts/nvrtc.sh installs it");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("model.json");
    let arguments = ["model", "--scale", "10", "--data-scale", "0.01", "--queries", "6", "--kernels", "2", "--json"];
    let output = model.current_dir(folder.path()).env("EMULATOR_COUNT", "1").args(arguments).arg(&json).output().unwrap();
    let (printed, said) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}");
    assert!(printed.contains("Q6") && printed.contains("all") && printed.contains(" launches: memory "), "{printed}");

    let report: Value = serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap();
    let results = report["results"].as_array().unwrap();
    assert_eq!((results.len(), &results[0]["query"]), (1, &"Q6".into()));
    for result in results {
        let number = |key: &str| result[key].as_f64().unwrap_or_else(|| panic!("no {key} in {result}"));
        assert!(number("launches") > 3.0 && number("waits") > 0.0, "{result}");
        // Four columns of 60 million rows, of which filters skip some.
        let (scanned, sectors) = (number("scanned_bytes"), number("sector_bytes"));
        assert!((1e8..1e10).contains(&scanned), "{scanned}");
        assert!(sectors > scanned / 4.0 && sectors < 4.0 * scanned, "{sectors} of {scanned}");
        assert!(number("kernel_seconds") < number("total_seconds"), "{result}");
        assert!(number("kernel_seconds") > scanned / 4.0 / 5e12, "{result}");
    }
}
