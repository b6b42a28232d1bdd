// Control and status registers (hw/registers.toml), over a port of 32 bits: a write or a read in a cycle, data of a read a cycle later.
module registers #(
    parameter int FLOWS = 4,
    parameter int FLOW_BITS = 2
) (
    input logic clk,
    input logic rst,
    input logic csr_write,
    input logic [15:0] csr_address,
    input logic [31:0] csr_write_data,
    output logic [31:0] csr_read_data,
    // Settings.
    output logic enable,
    output logic checking,
    output logic [7:0] control_flow,
    output logic [31:0] table_base,
    output logic [31:0] timeout,
    output logic [3:0] tries_max,
    output logic [4:0] key_offset,
    output logic [31:0] area_base,
    output logic [3:0] area_lines_log2,
    output logic [32*FLOWS-1:0] flow_tx_base,
    output logic [32*FLOWS-1:0] flow_rx_base,
    output logic [32*FLOWS-1:0] flow_status,
    output logic [4*FLOWS-1:0] flow_slots_log2,
    output logic [4*FLOWS-1:0] flow_stride_log2,
    output logic [FLOWS-1:0] flow_doorbell_mode,
    output logic [FLOWS-1:0] flow_enable,
    output logic [8*FLOWS-1:0] flow_calls_max,
    output logic [16*FLOWS-1:0] flow_doorbell,
    output logic [255:0] rule_control,
    output logic [255:0] rule_low,
    output logic [255:0] rule_high,
    output logic [255:0] bucket_period,
    output logic [255:0] bucket_burst,
    // A flow starts anew.
    output logic restart,
    output logic [FLOW_BITS-1:0] restart_flow,
    output logic [15:0] restart_slots,
    // Slots that the host has freed.
    output logic freed,
    output logic [FLOW_BITS-1:0] freed_flow,
    output logic [15:0] freed_total,
    // A command about a connection, until it is taken.
    output logic command_valid,
    output logic [1:0] command,
    output logic [15:0] command_connection,
    input logic command_take,
    // The monitor.
    output logic [4:0] counter_index,
    input logic [31:0] counter,
    output logic [4:0] bucket_index,
    input logic [31:0] bucket
);
  localparam logic [31:0] IDENTITY = 32'h5056_4e31;
  localparam logic [31:0] PARAMETERS = {8'(nic_pkg::BUFFER_LINES), 4'(nic_pkg::LINE_BYTES_LOG2 - 6), 12'(nic_pkg::BUFFERS), 8'(FLOWS)};

  // Registers that are only kept, and read back: one word for each address below 0x600.
  logic [31:0] control_q;
  logic [31:0] control_flow_q;
  logic [31:0] table_base_q;
  logic [31:0] timeout_q;
  logic [31:0] tries_max_q;
  logic [31:0] key_offset_q;
  logic [31:0] area_base_q;
  logic [31:0] area_shape_q;
  logic [32*FLOWS-1:0] tx_base_q;
  logic [32*FLOWS-1:0] rx_base_q;
  logic [32*FLOWS-1:0] status_q;
  logic [31:0] shape_q[FLOWS];
  logic [15:0] doorbell_q[FLOWS];
  logic [15:0] freed_q[FLOWS];
  logic [255:0] rule_control_q;
  logic [255:0] rule_low_q;
  logic [255:0] rule_high_q;
  logic [255:0] bucket_period_q;
  logic [255:0] bucket_burst_q;
  logic command_valid_q;
  logic [17:0] command_q;

  // Which group the address is in. The two lowest bits are not looked at.
  logic in_flows;
  logic in_rules;
  logic in_buckets;
  logic [2:0] flow_wide;
  logic [FLOW_BITS-1:0] flow;
  logic [2:0] rule;
  assign in_flows = csr_address[15:8] == nic_registers_pkg::FLOW_TX_BASE[15:8];
  assign flow_wide = csr_address[7:5];
  assign flow = flow_wide[FLOW_BITS-1:0];
  assign in_rules = csr_address[15:7] == nic_registers_pkg::RULE_CONTROL[15:7];
  assign in_buckets = csr_address[15:7] == nic_registers_pkg::BUCKET_PERIOD[15:7];
  assign rule = csr_address[6:4];
  assign counter_index = csr_address[6:2];
  assign bucket_index = csr_address[6:2];

  logic flow_write;
  assign flow_write = csr_write && in_flows && 4'(flow_wide) < 4'(FLOWS);
  assign restart = flow_write && csr_address[4:2] == nic_registers_pkg::FLOW_SHAPE[4:2] && csr_write_data[16];
  assign restart_flow = flow;
  assign restart_slots = 16'd1 << csr_write_data[3:0];
  assign freed = flow_write && csr_address[4:2] == nic_registers_pkg::FLOW_FREED[4:2];
  assign freed_flow = flow;
  assign freed_total = csr_write_data[15:0];
  assign command_valid = command_valid_q;
  assign command_connection = command_q[15:0];
  assign command = command_q[17:16];

  assign enable = control_q[0];
  assign checking = control_q[1];
  assign control_flow = control_flow_q[7:0];
  assign table_base = table_base_q;
  assign timeout = timeout_q;
  assign tries_max = tries_max_q[3:0];
  assign key_offset = key_offset_q[4:0];
  assign area_base = area_base_q;
  assign area_lines_log2 = area_shape_q[3:0];
  assign flow_status = status_q;
  assign flow_rx_base = rx_base_q;
  assign flow_tx_base = tx_base_q;
  assign bucket_burst = bucket_burst_q;
  assign bucket_period = bucket_period_q;
  assign rule_high = rule_high_q;
  assign rule_low = rule_low_q;
  assign rule_control = rule_control_q;
  always_comb begin
    for (int i = 0; i < FLOWS; i++) begin
      flow_slots_log2[4*i+:4] = shape_q[i][3:0];
      flow_stride_log2[4*i+:4] = shape_q[i][7:4];
      flow_doorbell_mode[i] = shape_q[i][8];
      flow_enable[i] = shape_q[i][16];
      flow_calls_max[8*i+:8] = shape_q[i][31:24];
      flow_doorbell[16*i+:16] = doorbell_q[i];
    end
  end

  always_ff @(posedge clk) begin
    if (rst) begin
      control_q <= '0;
      control_flow_q <= '0;
      table_base_q <= '0;
      timeout_q <= 32'd15625;  // a millisecond
      tries_max_q <= 32'd10;
      key_offset_q <= '0;
      area_base_q <= '0;
      area_shape_q <= '0;
      command_valid_q <= 1'b0;
      command_q <= '0;
      status_q <= '0;
      rx_base_q <= '0;
      tx_base_q <= '0;
      bucket_burst_q <= '0;
      bucket_period_q <= '0;
      rule_high_q <= '0;
      rule_low_q <= '0;
      rule_control_q <= '0;
      for (int i = 0; i < FLOWS; i++) begin
        shape_q[i] <= '0;
        doorbell_q[i] <= '0;
        freed_q[i] <= '0;
      end
    end else begin
      if (command_take) command_valid_q <= 1'b0;
      if (csr_write) begin
        case (csr_address)
          nic_registers_pkg::CONTROL: control_q <= csr_write_data;
          nic_registers_pkg::CONTROL_FLOW: control_flow_q <= csr_write_data;
          nic_registers_pkg::TABLE_BASE: table_base_q <= csr_write_data;
          nic_registers_pkg::TIMEOUT: timeout_q <= csr_write_data;
          nic_registers_pkg::TRIES_MAX: tries_max_q <= csr_write_data;
          nic_registers_pkg::KEY_OFFSET: key_offset_q <= csr_write_data;
          nic_registers_pkg::AREA_BASE: area_base_q <= csr_write_data;
          nic_registers_pkg::AREA_SHAPE: area_shape_q <= csr_write_data;
          nic_registers_pkg::CONNECTION:
          if (!command_valid_q) begin
            command_valid_q <= 1'b1;
            command_q <= csr_write_data[17:0];
          end
          default: ;
        endcase
        for (int i = 0; i < 8; i++) begin
          if (in_rules && rule == 3'(i)) begin
            case (csr_address[3:2])
              nic_registers_pkg::RULE_CONTROL[3:2]: rule_control_q[32*i+:32] <= csr_write_data;
              nic_registers_pkg::RULE_LOW[3:2]: rule_low_q[32*i+:32] <= csr_write_data;
              nic_registers_pkg::RULE_HIGH[3:2]: rule_high_q[32*i+:32] <= csr_write_data;
              default: ;
            endcase
          end
          if (in_buckets && rule == 3'(i)) begin
            case (csr_address[3:2])
              nic_registers_pkg::BUCKET_PERIOD[3:2]: bucket_period_q[32*i+:32] <= csr_write_data;
              nic_registers_pkg::BUCKET_BURST[3:2]: bucket_burst_q[32*i+:32] <= csr_write_data;
              default: ;
            endcase
          end
        end
      end
      if (flow_write) begin
        for (int i = 0; i < FLOWS; i++) begin
          if (flow == FLOW_BITS'(i)) begin
            case (csr_address[4:2])
              nic_registers_pkg::FLOW_TX_BASE[4:2]: tx_base_q[32*i+:32] <= csr_write_data;
              nic_registers_pkg::FLOW_RX_BASE[4:2]: rx_base_q[32*i+:32] <= csr_write_data;
              nic_registers_pkg::FLOW_STATUS[4:2]: status_q[32*i+:32] <= csr_write_data;
              default: ;
            endcase
          end
        end
        case (csr_address[4:2])
          nic_registers_pkg::FLOW_SHAPE[4:2]: begin
            shape_q[flow] <= csr_write_data;
            if (csr_write_data[16]) begin
              doorbell_q[flow] <= '0;
              freed_q[flow] <= '0;
            end
          end
          nic_registers_pkg::FLOW_DOORBELL[4:2]: doorbell_q[flow] <= csr_write_data[15:0];
          nic_registers_pkg::FLOW_FREED[4:2]: freed_q[flow] <= csr_write_data[15:0];
          default: ;
        endcase
      end
    end
  end

  logic [31:0] read;
  always_comb begin
    read = '0;
    case (csr_address)
      nic_registers_pkg::IDENTITY: read = IDENTITY;
      nic_registers_pkg::PARAMETERS: read = PARAMETERS;
      nic_registers_pkg::CONTROL: read = control_q;
      nic_registers_pkg::CONTROL_FLOW: read = control_flow_q;
      nic_registers_pkg::TABLE_BASE: read = table_base_q;
      nic_registers_pkg::TIMEOUT: read = timeout_q;
      nic_registers_pkg::TRIES_MAX: read = tries_max_q;
      nic_registers_pkg::CONNECTION_BUSY: read = {31'd0, command_valid_q};
      nic_registers_pkg::KEY_OFFSET: read = key_offset_q;
      nic_registers_pkg::AREA_BASE: read = area_base_q;
      nic_registers_pkg::AREA_SHAPE: read = area_shape_q;
      default: ;
    endcase
    if (in_flows && 4'(flow_wide) < 4'(FLOWS)) begin
      case (csr_address[4:2])
        nic_registers_pkg::FLOW_TX_BASE[4:2]: read = tx_base_q[32*flow+:32];
        nic_registers_pkg::FLOW_RX_BASE[4:2]: read = rx_base_q[32*flow+:32];
        nic_registers_pkg::FLOW_STATUS[4:2]: read = status_q[32*flow+:32];
        nic_registers_pkg::FLOW_SHAPE[4:2]: read = shape_q[flow];
        nic_registers_pkg::FLOW_DOORBELL[4:2]: read = {16'd0, doorbell_q[flow]};
        nic_registers_pkg::FLOW_FREED[4:2]: read = {16'd0, freed_q[flow]};
        default: ;
      endcase
    end
    if (in_rules) begin
      case (csr_address[3:2])
        nic_registers_pkg::RULE_CONTROL[3:2]: read = rule_control_q[32*rule+:32];
        nic_registers_pkg::RULE_LOW[3:2]: read = rule_low_q[32*rule+:32];
        nic_registers_pkg::RULE_HIGH[3:2]: read = rule_high_q[32*rule+:32];
        default: ;
      endcase
    end
    if (in_buckets) begin
      case (csr_address[3:2])
        nic_registers_pkg::BUCKET_PERIOD[3:2]: read = bucket_period_q[32*rule+:32];
        nic_registers_pkg::BUCKET_BURST[3:2]: read = bucket_burst_q[32*rule+:32];
        default: ;
      endcase
    end
    if (csr_address[15:7] == nic_registers_pkg::COUNTER[15:7]) read = counter;
    if (csr_address[15:7] == nic_registers_pkg::HISTOGRAM[15:7]) read = bucket;
  end
  always_ff @(posedge clk) csr_read_data <= read;
endmodule
