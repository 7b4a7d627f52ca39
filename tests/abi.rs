//! The shared library as the linker and a C compiler see it. Golden files hold exported names and struct layouts:
//! `NVTE_BLESS=1 cargo test --test abi` writes them anew.
#![cfg(all(feature = "capi", target_os = "linux", target_pointer_width = "64"))]

mod common;

use std::mem::{offset_of, size_of};

use common::elf::{library, Dynamic, DF_1_NODELETE, DF_SYMBOLIC};
use nvte::capi::{
    activation::*, adamw::*, api, cast::*, context::*, cross_entropy::*, dropout::*, gemm::*, grad_norm::*, info::*, layer_args::*,
    list::*, multi_cast::*, norm::*, rope::*, scaling::*, softmax::*, types::*,
};

fn dynamic() -> Dynamic {
    Dynamic::read(&std::fs::read(library()).unwrap())
}

/// Compares with a golden file, or writes it.
fn golden(name: &str, old: &str, new: &str) {
    if std::env::var_os("NVTE_BLESS").is_some() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
        return std::fs::write(folder.join(name), new).unwrap();
    }
    let gone: Vec<&str> = old.lines().filter(|l| !new.lines().any(|n| n == *l)).collect();
    let added: Vec<&str> = new.lines().filter(|l| !old.lines().any(|o| o == *l)).collect();
    assert!(old == new, "tests/golden/{name} (NVTE_BLESS=1 writes it): gone {gone:#?}, new {added:#?}");
}

#[test]
fn exports_are_the_golden_list_and_nothing_else() {
    let d = dynamic();
    let foreign: Vec<_> = d.exports.iter().filter(|s| !s.starts_with("nvte_")).collect();
    assert!(foreign.is_empty(), "exported beside nvte_*: {foreign:?}");
    golden("symbols.txt", include_str!("golden/symbols.txt"), &(d.exports.join("\n") + "\n"));
}

#[test]
fn every_export_is_in_the_table() {
    let exports = dynamic().exports;
    for name in exports.iter().filter(|n| *n != "nvte_api") {
        assert!(api::NAMES.contains(&name.as_str()), "{name}: its line in src/capi/api.rs is missing");
    }
    for (i, name) in api::NAMES.iter().enumerate() {
        assert!(exports.iter().any(|e| e == name), "{name} is in the table, but not exported");
        assert!(!api::NAMES[..i].contains(name), "{name} is in the table twice");
    }
}

#[test]
fn table_is_for_this_version_of_the_abi_only() {
    assert!(api::nvte_api(0).is_null());
    assert!(api::nvte_api(api::NVTE_ABI_VERSION + 1).is_null());
    // SAFETY: a static struct, checked for null.
    let table = unsafe { api::nvte_api(api::NVTE_ABI_VERSION).as_ref() }.unwrap();
    assert_eq!(table.struct_size as usize, 8 + 8 * api::NAMES.len());
    assert!(table.functions.iter().all(|f| !f.is_null()));
}

#[test]
fn library_needs_only_libc_libm_and_libgcc() {
    let d = dynamic();
    const ALLOWED: [&str; 5] = ["libc.so.6", "libm.so.6", "libgcc_s.so.1", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"];
    let more: Vec<_> = d.needed.iter().filter(|n| !ALLOWED.contains(&n.as_str())).collect();
    assert!(more.is_empty(), "libnvte.so also needs {more:?}");
}

#[test]
fn library_is_linked_as_the_abi_promises() {
    let d = dynamic();
    assert_eq!(d.soname, "libnvte.so");
    assert_ne!(d.flags & DF_SYMBOLIC, 0, "-Bsymbolic");
    assert_ne!(d.flags_1 & DF_1_NODELETE, 0, "-z nodelete");
}

macro_rules! layouts {
    ($($name:ident { $($field:ident),* $(,)? })*) => {{
        let mut text = String::new();
        $(
            text += &format!("{} {}\n", stringify!($name), size_of::<$name>());
            $(text += &format!("{}.{} {}\n", stringify!($name), stringify!($field), offset_of!($name, $field));)*
        )*
        text
    }};
}

/// Sizes and offsets as this crate has them; tests/c_programs.rs has a C compiler confirm the golden file.
#[test]
fn layouts_are_the_golden_list() {
    let mut text = layouts! {
        nvte_tensor_t {
            struct_size, dtype, scaling, flags, data, rows, cols, ld, data_t, ld_t, scale, scale_inv, scale_inv_ld, scale_inv_t,
            scale_inv_t_ld, amax,
        }
        nvte_context_options_t { struct_size, num_threads, cache_dir, library_dirs }
        nvte_norm_fwd_args_t { struct_size, zero_centered_gamma, x, gamma, beta, y, mu, rsigma, eps, reserved, residual, sum }
        nvte_norm_bwd_args_t {
            struct_size, zero_centered_gamma, dy, x, gamma, mu, rsigma, dx, dgamma, dbeta, workspace, workspace_bytes, dsum,
        }
        nvte_activation_bwd_args_t {
            struct_size, kind, dy, input, output, dbias, dbias_dtype, accumulate, workspace, workspace_bytes,
        }
        nvte_rope_angles_t {
            struct_size, interleaved, rotary_dim, cos, sin, table_rows, table_ld, start, positions, positions_i64, reserved, positions_seq_stride, positions_batch_stride, start_positions, cu_seqlens, sequences,
        }
        nvte_rope_args_t {
            struct_size, dtype, seq, batch, heads, head_dim, x, x_seq_stride, x_batch_stride, x_head_stride, y, y_seq_stride, y_batch_stride, y_head_stride, angles,
        }
        nvte_rope_qkv_args_t {
            struct_size, dtype, order, reserved, seq, batch, q_heads, kv_heads, head_dim, qkv, qkv_seq_stride, qkv_batch_stride, q, q_seq_stride, q_batch_stride, k, v, kv_seq_stride, kv_batch_stride, angles,
        }
        nvte_dropout_fwd_args_t {
            struct_size, reserved, p, x, bias, residual, y, mask, mask_ld, rng, rng_stream,
        }
        nvte_dropout_bwd_args_t {
            struct_size, dbias_dtype, p, dy, dx, mask, mask_ld, rng, rng_stream, dbias, accumulate, reserved, workspace, workspace_bytes,
        }
        nvte_capability_t {
            struct_size, device_type, ordinal, arch, multiprocessors, fp8_cast_hardware, fp8_gemm_hardware, fp8_gemm_k_major_only,
            total_memory, name,
        }
        nvte_gemm_args_t {
            struct_size, accumulate, transpose_a, transpose_b, epilogue, bias_dtype, alpha, beta, a, b, bias, c, d, workspace,
            workspace_bytes,
        }
        nvte_cast_current_args_t {
            struct_size, margin, epsilon, power_of_two, input, output, workspace, workspace_bytes,
        }
        nvte_cast_dbias_args_t {
            struct_size, dbias_dtype, input, output, dbias, accumulate, current, margin, epsilon, power_of_two, reserved, workspace,
            workspace_bytes,
        }
        nvte_scaling_update_args_t {
            struct_size, algo, slots, history_len, live, scale, history, slot_stride, step_stride, format_max, nonfinite, scale_inv,
            counter, interval, margin, epsilon, power_of_two,
        }
        nvte_list_t {
            struct_size, kind, data, bytes, count, blocks, tiles,
        }
        nvte_adamw_list_args_t {
            struct_size, reserved, count, weights, gradients, masters, exp_avgs, exp_avg_sqs, fp8s,
        }
        nvte_adamw_args_t {
            struct_size, decoupled, bias_correction, reserved, list, step, lr_ptr, found_inf, grad_scale, clip, lr, beta1, beta2, eps,
            weight_decay,
        }
        nvte_multi_cast_args_t {
            struct_size, current, list, skip, margin, epsilon, power_of_two, reserved,
        }
        nvte_grad_norm_args_t {
            struct_size, reserved, list, grad_scale, max_norm, norm, clip, found_inf,
        }
        nvte_layer_config_t {
            struct_size, dtype, param_dtype, recipe, format, margin, epsilon, power_of_two, accumulate_fprop, accumulate_dgrad,
            accumulate_wgrad, rmsnorm, zero_centered_gamma, activation, eps, reserved, in_features, out_features, ffn_features,
        }
        nvte_layer_sizes_t {
            struct_size, slots, saved_per_token, saved_fixed, forward_workspace_per_token, forward_workspace_fixed,
            backward_workspace_per_token, backward_workspace_fixed, weight_cache,
        }
        nvte_weight_cache_t {
            struct_size, valid, data, bytes,
        }
        nvte_linear_fwd_args_t {
            struct_size, flags, tokens, saved, saved_bytes, workspace, workspace_bytes, live, scale, weight_cache, skip_refresh, x, ldx,
            weight, ldw, bias, y, ldy,
        }
        nvte_linear_bwd_args_t {
            struct_size, flags, tokens, saved, saved_bytes, workspace, workspace_bytes, live, scale, weight_cache, skip_refresh, dy,
            lddy, x, ldx, weight, ldw, dx, lddx, dw, lddw, db, dw_dtype, reserved,
        }
        nvte_layernorm_linear_fwd_args_t {
            struct_size, flags, tokens, saved, saved_bytes, workspace, workspace_bytes, live, scale, weight_cache, skip_refresh, x, ldx,
            gamma, beta, weight, ldw, bias, y, ldy, norm_out, ld_norm_out,
        }
        nvte_layernorm_linear_bwd_args_t {
            struct_size, flags, tokens, saved, saved_bytes, workspace, workspace_bytes, live, scale, weight_cache, skip_refresh, dy,
            lddy, x, ldx, gamma, weight, ldw, dnorm_out, ld_dnorm_out, dx, lddx, dgamma, dbeta, dw, lddw, db, dw_dtype, reserved,
        }
        nvte_layernorm_mlp_fwd_args_t {
            struct_size, flags, tokens, saved, saved_bytes, workspace, workspace_bytes, live, scale, weight_cache, skip_refresh, x, ldx,
            gamma, beta, fc1_weight, ld_fc1_weight, fc1_bias, fc2_weight, ld_fc2_weight, fc2_bias, y, ldy, norm_out, ld_norm_out,
        }
        nvte_layernorm_mlp_bwd_args_t {
            struct_size, flags, tokens, saved, saved_bytes, workspace, workspace_bytes, live, scale, weight_cache, skip_refresh, dy,
            lddy, x, ldx, gamma, fc1_weight, ld_fc1_weight, fc2_weight, ld_fc2_weight, dnorm_out, ld_dnorm_out, dx, lddx, dgamma, dbeta,
            dfc1_weight, ld_dfc1_weight, dfc1_bias, dfc2_weight, ld_dfc2_weight, dfc2_bias, dw_dtype, reserved,
        }
        nvte_softmax_fwd_args_t {
            struct_size, causal, x, y, mask, mask_batch_stride, mask_head_stride, mask_query_stride, queries, heads, offset, scale, reserved,
        }
        nvte_softmax_bwd_args_t { struct_size, causal, dy, y, dx, queries, offset, scale, reserved }
        nvte_cross_entropy_args_t {
            struct_size, target_type, logits, dlogits, target, ignore_index, dloss, dloss_stride, loss, logsumexp, total, workspace,
            workspace_bytes, label_smoothing, reduction,
        }
        nvte_cross_entropy_slice_args_t {
            struct_size, target_type, logits, dlogits, target, ignore_index, start, vocabulary, partial, combined, dloss, dloss_stride,
            workspace, workspace_bytes, label_smoothing, reduction,
        }
        nvte_cross_entropy_combine_args_t {
            struct_size, target_type, partials, ranks, rank_stride, tokens, vocabulary, target, ignore_index, combined, loss, logsumexp,
            total, workspace, workspace_bytes, label_smoothing, reduction,
        }
    };
    text += &format!("nvte_api_t {}\nnvte_api_t.struct_size 0\nnvte_api_t.reserved 4\n", size_of::<api::nvte_api_t>());
    for (i, name) in api::NAMES.iter().enumerate() {
        let field = name.strip_prefix("nvte_").unwrap();
        text += &format!("nvte_api_t.{field} {}\n", offset_of!(api::nvte_api_t, functions) + 8 * i);
    }
    golden("layouts.txt", include_str!("golden/layouts.txt"), &text);
}

/// A struct or field added to the header belongs in the list above.
#[test]
fn layouts_cover_the_header() {
    if std::env::var_os("NVTE_BLESS").is_some() {
        return;
    }
    let (header, golden) = (include_str!("../include/nvte.h"), include_str!("golden/layouts.txt"));
    let known = |what: &str| golden.lines().any(|l| l.split(' ').next() == Some(what));
    let mut inside: Option<&str> = None;
    for line in header.lines() {
        let t = line.trim();
        if let Some(name) = t.strip_prefix("typedef struct ").or(t.strip_prefix("struct ")).and_then(|s| s.strip_suffix(" {")) {
            assert!(known(name), "{name} is missing in tests/abi.rs");
            inside = Some(name);
        } else if t.starts_with('}') {
            inside = None;
        } else if let (Some(name), true, false) = (inside, t.ends_with(';'), t.starts_with("//")) {
            let field = match t.split_once("(*") {
                Some((_, rest)) => rest.split(')').next().unwrap(),
                None => t.trim_end_matches(';').split('[').next().unwrap().rsplit([' ', '*']).next().unwrap(),
            };
            assert!(known(&format!("{name}.{field}")), "{name}.{field} is missing in tests/abi.rs");
        }
    }
}

/// Names of statuses, from the header's own list.
#[test]
fn every_status_of_the_header_has_its_name() {
    let mut seen = 0;
    for line in include_str!("../include/nvte.h").lines() {
        let mut words = line.split_whitespace();
        let (Some("#define"), Some(name), Some(number)) = (words.next(), words.next(), words.next()) else { continue };
        if name == "NVTE_OK" || name.starts_with("NVTE_ERROR_") {
            // SAFETY: a static C string.
            let text = unsafe { std::ffi::CStr::from_ptr(nvte_status_name(number.parse().unwrap())) };
            assert_eq!(text.to_str().unwrap(), name);
            seen += 1;
        }
    }
    assert!(seen > 20, "found only {seen} statuses in the header");
}
