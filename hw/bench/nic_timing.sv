// The NIC between shift registers, for placement and routing: its ports have more bits than an FPGA has pins. Each port begins or ends at
// a register, as behind a port's crossings, so that the timing found is the NIC's own.
module nic_timing (
    input logic clk,
    input logic rst,
    // What the NIC's inputs get comes bit by bit, and what its outputs say leaves so.
    input logic scan_in,
    input logic capture,
    output logic scan_out
);
  localparam int INPUT_BITS = 3 * nic_pkg::LINE_BITS + nic_pkg::LINE_BYTES_LOG2 + 146;
  localparam int OUTPUT_BITS = 2 * nic_pkg::LINE_BITS + nic_pkg::LINE_BYTES_LOG2 + 150;

  logic rst_q;
  logic capture_q;
  logic [INPUT_BITS-1:0] inputs_q;
  logic [OUTPUT_BITS-1:0] outputs;
  logic [OUTPUT_BITS-1:0] outputs_q;

  logic [31:0] now;
  logic csr_write;
  logic [15:0] csr_address;
  logic [31:0] csr_write_data;
  logic [31:0] csr_read_data;
  logic push_valid;
  logic push_ready;
  logic [7:0] push_flow;
  logic [nic_pkg::LINE_BITS-1:0] push_line;
  logic host_read;
  logic host_read_ready;
  logic [31:0] host_read_address;
  logic host_data_valid;
  logic [nic_pkg::LINE_BITS-1:0] host_data;
  logic host_write;
  logic host_write_ready;
  logic [31:0] host_write_address;
  logic [nic_pkg::LINE_BITS-1:0] host_write_data;
  logic tx_valid;
  logic tx_ready;
  logic [nic_pkg::LINE_BITS-1:0] tx_data;
  logic [nic_pkg::LINE_BYTES_LOG2:0] tx_bytes;
  logic tx_last;
  logic [47:0] tx_remote;
  logic rx_valid;
  logic [nic_pkg::LINE_BITS-1:0] rx_data;
  logic [nic_pkg::LINE_BYTES_LOG2:0] rx_bytes;
  logic rx_last;
  logic rx_spoiled;
  logic [47:0] rx_remote;
  nic dut (
      .rst(rst_q),
      .*
  );

  assign {now, csr_write, csr_address, csr_write_data, push_valid, push_flow, push_line, host_read_ready, host_data_valid,
      host_data, host_write_ready, tx_ready, rx_valid, rx_data, rx_bytes, rx_last, rx_spoiled, rx_remote} = inputs_q;
  assign outputs = {csr_read_data, push_ready, host_read, host_read_address, host_write, host_write_address, host_write_data,
      tx_valid, tx_data, tx_bytes, tx_last, tx_remote};
  assign scan_out = outputs_q[0];

  always_ff @(posedge clk) begin
    rst_q <= rst;
    capture_q <= capture;
    inputs_q <= {inputs_q[INPUT_BITS-2:0], scan_in};
    outputs_q <= capture_q ? outputs : {1'b0, outputs_q[OUTPUT_BITS-1:1]};
  end
endmodule
