// The NIC as lock-step simulation drives it: its inputs are registers here, so nothing follows from an input between two edges, and a cycle is one
// evaluation of the model. What is set before an edge is the input of the cycle that begins with it. Pushed lines alone are not kept: what is set
// of them before an edge is the input of the cycle that ends with it, as `push_ready` is of that cycle.
module nic_stepped #(
    parameter int FLOWS = 4,
    parameter int BATCH = 4
) (
    input logic clk,
    input logic rst,
    // Time, in ticks of 64 ns.
    input logic [31:0] now,
    // Registers.
    input logic csr_write,
    input logic [15:0] csr_address,
    input logic [31:0] csr_write_data,
    output logic [31:0] csr_read_data,
    // Lines that the host pushes to a flow.
    input logic push_valid,
    output logic push_ready,
    input logic [7:0] push_flow,
    input logic [nic_pkg::LINE_BITS-1:0] push_line,
    // Lines of host memory. Reads are answered in order, and see what was written before.
    output logic host_read,
    input logic host_read_ready,
    output logic [31:0] host_read_address,
    input logic host_data_valid,
    input logic [nic_pkg::LINE_BITS-1:0] host_data,
    output logic host_write,
    input logic host_write_ready,
    output logic [31:0] host_write_address,
    output logic [nic_pkg::LINE_BITS-1:0] host_write_data,
    // The wire.
    output logic tx_valid,
    input logic tx_ready,
    output logic [nic_pkg::LINE_BITS-1:0] tx_data,
    output logic [nic_pkg::LINE_BYTES_LOG2:0] tx_bytes,
    output logic tx_last,
    output logic [47:0] tx_remote,
    input logic rx_valid,
    input logic [nic_pkg::LINE_BITS-1:0] rx_data,
    input logic [nic_pkg::LINE_BYTES_LOG2:0] rx_bytes,
    input logic rx_last,
    input logic rx_spoiled,
    input logic [47:0] rx_remote
`ifdef NIC_COVERED
    ,
    output logic [138:0] covered
`endif
);
  logic rst_q;
  logic [31:0] now_q;
  logic csr_write_q;
  logic [15:0] csr_address_q;
  logic [31:0] csr_write_data_q;
  logic host_read_ready_q;
  logic host_data_valid_q;
  logic [nic_pkg::LINE_BITS-1:0] host_data_q;
  logic host_write_ready_q;
  logic tx_ready_q;
  logic rx_valid_q;
  logic [nic_pkg::LINE_BITS-1:0] rx_data_q;
  logic [nic_pkg::LINE_BYTES_LOG2:0] rx_bytes_q;
  logic rx_last_q;
  logic rx_spoiled_q;
  logic [47:0] rx_remote_q;
  always_ff @(posedge clk) begin
    rst_q <= rst;
    now_q <= now;
    csr_write_q <= csr_write;
    csr_address_q <= csr_address;
    csr_write_data_q <= csr_write_data;
    host_read_ready_q <= host_read_ready;
    host_data_valid_q <= host_data_valid;
    host_data_q <= host_data;
    host_write_ready_q <= host_write_ready;
    tx_ready_q <= tx_ready;
    rx_valid_q <= rx_valid;
    rx_data_q <= rx_data;
    rx_bytes_q <= rx_bytes;
    rx_last_q <= rx_last;
    rx_spoiled_q <= rx_spoiled;
    rx_remote_q <= rx_remote;
  end

`ifdef NIC_COVERED
  nic_covered #(
`else
  nic #(
`endif
      .FLOWS(FLOWS),
      .BATCH(BATCH)
  ) dut (
      .rst(rst_q),
      .now(now_q),
      .csr_write(csr_write_q),
      .csr_address(csr_address_q),
      .csr_write_data(csr_write_data_q),
      .host_read_ready(host_read_ready_q),
      .host_data_valid(host_data_valid_q),
      .host_data(host_data_q),
      .host_write_ready(host_write_ready_q),
      .tx_ready(tx_ready_q),
      .rx_valid(rx_valid_q),
      .rx_data(rx_data_q),
      .rx_bytes(rx_bytes_q),
      .rx_last(rx_last_q),
      .rx_spoiled(rx_spoiled_q),
      .rx_remote(rx_remote_q),
      .*
  );
endmodule
