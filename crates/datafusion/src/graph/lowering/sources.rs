// SPDX-License-Identifier: Apache-2.0
//! Stages of leaves: uploads, resident tables and device streams.

use std::sync::Arc;

use arrow::datatypes::{Schema, SchemaRef};
use datafusion::common::{Result, plan_datafusion_err};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::placeholder_row::PlaceholderRowExec;
use kernels::ops::Decode;

use super::Lowering;
use crate::exec::{DeviceScanExec, DeviceStreamExec, HostToDeviceExec, reads_files};
use crate::graph::stage::{Stage, StageKind};

impl Lowering<'_> {
    pub(super) fn upload(&self, upload: &HostToDeviceExec, partitions: usize) -> Result<Stage> {
        // No expression refers to the columns of a PlaceholderRowExec.
        let is_placeholder = upload.input().is::<PlaceholderRowExec>();
        let schema = if is_placeholder { Arc::new(Schema::empty()) } else { upload.input().schema() };
        let types = if reads_files(upload.input()) { columnar::file_types(&schema) } else { columnar::natural_types(&schema) };
        Ok(Stage {
            kind: StageKind::Upload { input: Arc::clone(upload.input()) },
            types: types.map_err(|error| plan_datafusion_err!("HostToDeviceExec: {error}"))?,
            schema,
            partitions,
            operator: upload.name().to_string(),
            metrics: upload.metrics.clone(),
        })
    }

    pub(super) fn scan(&self, scan: &DeviceScanExec, schema: SchemaRef) -> Stage {
        Stage {
            kind: StageKind::Scan { snapshot: Arc::clone(scan.snapshot()), columns: scan.columns().to_vec() },
            types: scan.columns().iter().map(|index| scan.snapshot().types()[*index].clone()).collect(),
            schema,
            partitions: 1,
            operator: scan.name().to_string(),
            metrics: scan.metrics.clone(),
        }
    }

    pub(super) fn stream(&self, scan: &DeviceStreamExec, schema: SchemaRef) -> Result<Stage> {
        let decode = Decode::try_new(Arc::clone(&schema), self.options.clone());
        let decode = decode.map_err(|error| plan_datafusion_err!("DeviceStreamExec: {error}"))?;
        Ok(Stage {
            types: decode.output_types().to_vec(),
            kind: StageKind::Stream {
                source: Arc::clone(scan.source()),
                columns: scan.columns().to_vec(),
                decode: Arc::new(decode),
            },
            schema,
            partitions: 1,
            operator: scan.name().to_string(),
            metrics: scan.metrics.clone(),
        })
    }
}
